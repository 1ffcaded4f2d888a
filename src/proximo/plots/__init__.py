"""What is drawn: the pictures of a run, and the charts of a report."""
