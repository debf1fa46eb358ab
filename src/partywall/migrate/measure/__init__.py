"""Moves of guests between two hosts, carried out and watched. Only this room touches hosts."""
