"""The checks behind `lbbsp doctor`: each yields findings, none changes anything."""
