"""The slots of histograms of throttle times, in the ledger and in reports."""

from typing import Final

EXACT_SLOTS: Final = 32


def throttle_slot(milliseconds: int) -> int:
    """The histogram slot of a throttle time: exact below 32 ms, above that 16 slots to each doubling (6.25 % wide).

    Log-linear as in HdrHistogram, in whole numbers only, so that folded events of any number of gateways add up.
    """
    if milliseconds < EXACT_SLOTS:
        return max(0, milliseconds)
    shift = milliseconds.bit_length() - 5
    return (shift << 4) + (milliseconds >> shift)
