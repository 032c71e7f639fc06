//! Numbers, keys, values and distributions that a workload draws from.
