"""Tables, and what they are written as: text, Markdown, CSV. A template writes HTML."""
