"""Videos go in, frames and EqBen's pairs of frames come out; the builders `eqben_*` use it."""
