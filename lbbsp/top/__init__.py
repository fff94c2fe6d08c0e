"""`lbbsp top` and `lbbsp stragglers`: what a manager says of its jobs, for people and for scripts."""
