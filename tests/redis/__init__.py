"""The Redis store on real servers: cluster, Sentinel, outages, races, damage, costs."""
