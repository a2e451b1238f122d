"""Inspecting a model: audits, probes, counts of parameters and operations, throughput."""
