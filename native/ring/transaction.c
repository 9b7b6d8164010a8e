/*
 * Kafka's last stable offset: that of the oldest transaction which is open, or whose marker readers do not see yet. New ones
 * begin at the end of the log, and markers come there, so both lists are looked at from behind.
 */
#include "transaction.h"

#include <errno.h>
#include <stdlib.h>

int tpc_transactions_reserve(tpc_transactions *transactions) {
    if (!transactions->spare) transactions->spare = malloc(sizeof *transactions->spare);
    return transactions->spare ? 0 : -ENOMEM;
}

tpc_open_transaction *tpc_transactions_begin(tpc_transactions *transactions, int64_t producer_id,
                                             int64_t first_offset) {
    tpc_open_transaction *begun = transactions->spare, *before = transactions->last;
    transactions->spare = NULL;
    while (before && before->first_offset > first_offset) before = before->previous;
    tpc_open_transaction *after = before ? before->next : transactions->first;
    *begun = (tpc_open_transaction){
        .previous = before, .next = after, .producer_id = producer_id, .first_offset = first_offset, .marker_end = -1};
    *(before ? &before->next : &transactions->first) = begun;
    *(after ? &after->previous : &transactions->last) = begun;
    return begun;
}

void tpc_transactions_end(tpc_transactions *transactions, tpc_open_transaction *transaction, int64_t marker_end) {
    tpc_open_transaction *before = transactions->ended_last;
    while (before && before->marker_end > marker_end) before = before->ended_previous;
    tpc_open_transaction *after = before ? before->ended_next : transactions->ended_first;
    transaction->marker_end = marker_end;
    transaction->ended_previous = before;
    transaction->ended_next = after;
    *(before ? &before->ended_next : &transactions->ended_first) = transaction;
    *(after ? &after->ended_previous : &transactions->ended_last) = transaction;
}

void tpc_transactions_reopen(tpc_transactions *transactions, tpc_open_transaction *transaction) {
    tpc_open_transaction *before = transaction->ended_previous, *after = transaction->ended_next;
    *(before ? &before->ended_next : &transactions->ended_first) = after;
    *(after ? &after->ended_previous : &transactions->ended_last) = before;
    transaction->ended_previous = transaction->ended_next = NULL;
    transaction->marker_end = -1;
}

void tpc_transactions_forget(tpc_transactions *transactions, tpc_open_transaction *transaction) {
    if (transaction->marker_end >= 0) tpc_transactions_reopen(transactions, transaction);
    *(transaction->previous ? &transaction->previous->next : &transactions->first) = transaction->next;
    *(transaction->next ? &transaction->next->previous : &transactions->last) = transaction->previous;
    if (transactions->spare)
        free(transaction);
    else
        transactions->spare = transaction;
}

void tpc_transactions_settle(tpc_transactions *transactions, int64_t high_watermark) {
    while (transactions->ended_first && transactions->ended_first->marker_end <= high_watermark)
        tpc_transactions_forget(transactions, transactions->ended_first);
}

void tpc_transactions_free(tpc_transactions *transactions) {
    while (transactions->first) tpc_transactions_forget(transactions, transactions->first);
    free(transactions->spare);
    transactions->spare = NULL;
}
