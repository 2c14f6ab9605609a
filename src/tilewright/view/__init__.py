"""What people look at: stages as text, pictures, the demo."""
