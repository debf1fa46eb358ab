"""Documents from findings and evidence. Pure functions without measurements or statistics of their own.

* `terminal.show`: tables for a terminal
* `html.render`: one self-contained page
* `export.FILES`: JSON, CSV, Parquet, and each chart as PNG and SVG
* `compare_view.show`: two runs side by side

`figures` formats numbers, `matrix` names cells and grades their severity, and `charts` draws.
"""
