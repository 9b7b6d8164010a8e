"""Who somebody is, and what they may do: machines without I/O, clocks or chance.

`principals` names who asks, `operations` what may be asked; `acls` decides by rules. Bytes, times and random numbers
come in as arguments. Each core has its own; what they decide by (users, rules) is in the cluster's image.
"""
