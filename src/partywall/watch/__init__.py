"""Watches the disks of a host: what each disk and each tenant does, and when a disk is slow. Changes nothing."""
