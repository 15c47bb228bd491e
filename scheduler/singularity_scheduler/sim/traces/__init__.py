"""Where simulated work comes from: readers of public trace formats and a synthetic generator.

Every reader gives a `records.Trace`. Users supply the trace files; none is shipped.
"""
