"""Where the native module is defined (`module.cpp`) and built (`build/`); see `build.py`."""
