"""What takes part in a replay at each hook point, one file a framework and kind of process."""
