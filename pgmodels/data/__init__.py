"""Reading and checking what users give: arrays, text and dates, options, rows in batches."""
