"""torch's own profiler (Kineto): timelines where nsys cannot be used."""
