"""The states of consumer groups and of their members, and the page that shows them."""

from pathlib import Path

from tpc_broker.coordinator.consumer.group import MEMBER_STATES, STATES, ConsumerState, MemberState, states_page


def test_every_state_is_explained() -> None:
    assert set(STATES) == set(ConsumerState)
    assert set(MEMBER_STATES) == set(MemberState)


def test_the_page_is_what_the_tables_say() -> None:
    page = Path(__file__).parents[3] / "docs" / "groups.md"
    assert f"\n{states_page()}\n" in page.read_text()
