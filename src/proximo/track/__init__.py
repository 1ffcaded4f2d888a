"""What a run leaves behind and shows: files, console, pictures. Imports nothing of training."""
