"""Reading topics: fetching, positions, and the streams that a user sees.

Modules
    `ports`   how membership, reader and fronts see each other
"""
