"""Draw a report from its JSON document."""
