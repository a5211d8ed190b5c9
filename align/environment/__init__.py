"""What the two stacks are, and which differences between them are known to matter."""
