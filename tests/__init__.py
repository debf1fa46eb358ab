"""The tests of the controller. Files of several tests are imported by their whole names: `tests.run.findings.builders`.

It is a package because some distributions install one of the same name, which would come before a folder without this
file.
"""
