"""Links to the other nodes: connections, who greets on them, their encryption, and what a node has of the world."""
