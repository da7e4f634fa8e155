"""`temper dashboard`: a web server that shows the runs of a folder, live."""
