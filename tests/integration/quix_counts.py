"""Counts the words of a topic exactly once by Quix Streams, in another topic; runs until it is killed.

Arguments: bootstrap servers, consumer group, source, target, folder for state.
"""

import sys

from quixstreams import Application


def main(bootstrap, group, source, target, folder):
    application = Application(
        broker_address=bootstrap, consumer_group=group, auto_offset_reset="earliest", state_dir=folder,
        processing_guarantee="exactly-once", commit_interval=0.1, auto_create_topics=True,
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 500},
        producer_extra_config={"transaction.timeout.ms": 5000},
    )  # fmt: skip
    words = application.topic(source, value_deserializer="str")
    counts = application.topic(target, key_serializer="str", value_serializer="str")

    def count(word, state):
        number = state.get("count", 0) + 1
        state.set("count", number)
        return str(number)

    text = {f"{part}_{what}": "str" for part in ("key", "value") for what in ("serializer", "deserializer")}
    by_word = application.dataframe(words).group_by(lambda word: word, name="word", **text)
    by_word.apply(count, stateful=True).to_topic(counts)
    application.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
