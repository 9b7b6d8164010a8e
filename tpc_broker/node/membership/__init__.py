"""Who this node is, and which others are there: identity, options, SWIM over UDP, and what is said of the others."""
