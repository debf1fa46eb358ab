"""Reports: texts, pages, files and charts, as all kinds of record have them."""
