"""Long checks by hand, against other libraries; their commands stand in each file."""
