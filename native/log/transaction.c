/*
 * Kafka's last stable offset: that of the oldest transaction which is open, or whose marker readers do not see yet. New ones
 * begin at the end of the log, and markers come there, so both lists are looked at from behind.
 */
#include "transaction.h"

#include "invariant.h"

#include <errno.h>
#include <stdlib.h>

#define ABORTED_MIN 16u

static int reserve_aborted(tpc_transactions *transactions) {
    if (transactions->aborted_count < transactions->aborted_capacity) return 0;
    uint32_t capacity = transactions->aborted_capacity ? transactions->aborted_capacity * 2 : ABORTED_MIN;
    tpc_aborted *grown = realloc(transactions->aborted, capacity * sizeof *grown);
    if (!grown) return -ENOMEM;
    transactions->aborted = grown;
    transactions->aborted_capacity = capacity;
    return 0;
}

int tpc_transactions_reserve(tpc_transactions *transactions) {
    if (!transactions->spare) transactions->spare = malloc(sizeof *transactions->spare);
    return transactions->spare ? reserve_aborted(transactions) : -ENOMEM;
}

tpc_open_transaction *tpc_transactions_begin(tpc_transactions *transactions, int64_t producer_id,
                                             int64_t first_offset) {
    tpc_open_transaction *begun = transactions->spare, *before = transactions->last;
    TPC_HOLDS(begun && first_offset >= 0); /* reserve came before */
    TPC_HOLDS(!transactions->first == !transactions->last);
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
    TPC_HOLDS(transaction->marker_end < 0); /* it ends once */
    TPC_HOLDS(marker_end > transaction->first_offset);
    TPC_HOLDS(!transactions->ended_first == !transactions->ended_last);
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
    TPC_HOLDS(transaction->marker_end >= 0);
    TPC_HOLDS((before ? before->ended_next : transactions->ended_first) == transaction);
    TPC_HOLDS((after ? after->ended_previous : transactions->ended_last) == transaction);
    *(before ? &before->ended_next : &transactions->ended_first) = after;
    *(after ? &after->ended_previous : &transactions->ended_last) = before;
    transaction->ended_previous = transaction->ended_next = NULL;
    transaction->marker_end = -1;
}

void tpc_transactions_forget(tpc_transactions *transactions, tpc_open_transaction *transaction) {
    if (transaction->marker_end >= 0) tpc_transactions_reopen(transactions, transaction);
    TPC_HOLDS((transaction->previous ? transaction->previous->next : transactions->first) == transaction);
    TPC_HOLDS((transaction->next ? transaction->next->previous : transactions->last) == transaction);
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

static tpc_verification *verification_of(const tpc_transactions *transactions, int64_t producer_id) {
    for (uint32_t i = 0; i < transactions->verifications_count; i++)
        if (transactions->verifications[i].producer_id == producer_id) return &transactions->verifications[i];
    return NULL;
}

const tpc_verification *tpc_verification_of(const tpc_transactions *transactions, int64_t producer_id) {
    return verification_of(transactions, producer_id);
}

static int grow_verifications(tpc_transactions *transactions) {
    uint32_t capacity = transactions->verifications_capacity ? 2 * transactions->verifications_capacity : 4;
    if (transactions->verifications_count < transactions->verifications_capacity) return 0;
    if (transactions->verifications_count >= TPC_VERIFICATIONS_MAX) return -EBUSY;
    tpc_verification *grown = realloc(transactions->verifications, capacity * sizeof *grown);
    if (!grown) return -ENOMEM;
    transactions->verifications = grown;
    transactions->verifications_capacity = capacity;
    return 0;
}

int tpc_verification_begin(tpc_transactions *transactions, const tpc_verification *asked, uint32_t *guard) {
    tpc_verification *known = verification_of(transactions, asked->producer_id);
    if (known && known->producer_epoch > asked->producer_epoch) return -EINVAL;
    if (known && known->producer_epoch == asked->producer_epoch) {
        if (asked->lowest_sequence < known->lowest_sequence) known->lowest_sequence = asked->lowest_sequence;
        known->begins_anew |= asked->begins_anew;
        known->asking++;
        *guard = known->guard;
        return 0;
    }
    int result = known ? 0 : grow_verifications(transactions);
    if (result < 0) return result;
    if (!known) known = &transactions->verifications[transactions->verifications_count++];
    *known = *asked;
    known->asking = 1;
    *guard = asked->guard;
    return 0;
}

void tpc_verification_end(tpc_transactions *transactions, int64_t producer_id, int16_t producer_epoch) {
    tpc_verification *known = verification_of(transactions, producer_id);
    if (known && known->producer_epoch <= producer_epoch)
        *known = transactions->verifications[--transactions->verifications_count];
}

void tpc_verification_leave(tpc_transactions *transactions, int64_t producer_id, uint32_t guard) {
    tpc_verification *known = verification_of(transactions, producer_id);
    TPC_HOLDS(!known || known->asking > 0);
    if (known && known->guard == guard && --known->asking == 0)
        tpc_verification_end(transactions, producer_id, known->producer_epoch);
}

void tpc_verifications_forget(tpc_transactions *transactions) { transactions->verifications_count = 0; }

void tpc_transactions_abort(tpc_transactions *transactions, const tpc_aborted *aborted) {
    uint32_t count = transactions->aborted_count;
    TPC_HOLDS(count < transactions->aborted_capacity); /* reserve came before */
    TPC_HOLDS(aborted->stable_offset <= aborted->first_offset && aborted->first_offset < aborted->marker_end);
    TPC_HOLDS(!count || transactions->aborted[count - 1].marker_end < aborted->marker_end);
    transactions->aborted[transactions->aborted_count++] = *aborted;
}

void tpc_transactions_cut_aborted(tpc_transactions *transactions, int64_t end_offset) {
    uint32_t *count = &transactions->aborted_count;
    while (*count && transactions->aborted[*count - 1].marker_end > end_offset) --*count;
}

void tpc_transactions_cut(tpc_transactions *transactions, int64_t end_offset) {
    while (transactions->last && transactions->last->first_offset >= end_offset)
        tpc_transactions_forget(transactions, transactions->last);
}

void tpc_transactions_free(tpc_transactions *transactions) {
    while (transactions->first) tpc_transactions_forget(transactions, transactions->first);
    TPC_HOLDS(!transactions->last && !transactions->ended_first && !transactions->ended_last);
    free(transactions->spare);
    free(transactions->aborted);
    free(transactions->verifications);
    *transactions = (tpc_transactions){0};
}
