"""Turn a report document into HTML, Markdown or JSON text."""
