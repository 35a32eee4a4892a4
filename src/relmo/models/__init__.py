"""What a user holds: a network with its vocabulary and settings, or word vectors; and what is done with them."""
