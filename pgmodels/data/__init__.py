"""Reading and checking users' data: arrays, text and dates, options, batches of rows."""
