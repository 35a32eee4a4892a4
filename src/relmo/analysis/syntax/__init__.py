"""What a network knows of syntax: agreement, the units that carry number, depth in the tree."""
