"""Documents from findings and evidence: pure functions, no measurement and no statistics of their own.

* `terminal.show`: tables for a terminal
* `html.render`: one self-contained page
* `export.export_all`: JSON, CSV, Parquet, and each chart as PNG and SVG
* `compare_view.show`: two runs side by side

`figures` says how a number is written, `matrix` what a cell is called and how severe it is, `charts` what is drawn.
"""
