"""From coordinates to positions, to flat loops, to tiles and vectors."""
