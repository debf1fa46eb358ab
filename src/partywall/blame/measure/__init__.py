"""What touches the host: levers on suspects, the victim's rate, and the experiment that ties them."""
