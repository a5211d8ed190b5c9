"""What looks on at each hook point, one file a framework and kind of process."""
