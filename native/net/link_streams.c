/* Who is a stream of a link: by the slots of the clients' connections, in pages that are there while somebody is in them. */
#include "link_state.h"

#include <stdlib.h>
#include <string.h>

link_stream *link_find_slot(const link *it, uint64_t client) {
    uint32_t slot = (uint32_t)client, page = slot >> LINK_PAGE_BITS;
    return page < it->pages_capacity && it->pages[page] ? &it->pages[page]->streams[slot % LINK_PAGE_STREAMS] : NULL;
}

link_stream *link_find_stream(const link *it, uint64_t client) {
    link_stream *stream = link_find_slot(it, client);
    return stream && stream->client == client ? stream : NULL;
}

link_stream *link_begin_stream(link *it, uint64_t client) {
    uint32_t slot = (uint32_t)client, page = slot >> LINK_PAGE_BITS,
             capacity = it->pages_capacity ? it->pages_capacity : 1;
    if (!client || slot >= TPC_LINK_PLACES_MAX) return NULL;
    while (capacity <= page) capacity *= 2;
    if (capacity > it->pages_capacity) {
        link_page **pages = realloc(it->pages, capacity * sizeof *pages);
        if (!pages) return NULL;
        memset(pages + it->pages_capacity, 0, (capacity - it->pages_capacity) * sizeof *pages);
        it->pages = pages;
        it->pages_capacity = capacity;
    }
    if (!it->pages[page]) {
        it->pages[page] = calloc(1, sizeof **it->pages);
        if (!it->pages[page]) return NULL;
        it->owner->statistics.pages++;
    }
    link_stream *stream = &it->pages[page]->streams[slot % LINK_PAGE_STREAMS];
    TPC_HOLDS(!stream->first && !stream->connection); /* nobody waits for calls of whoever had the place */
    it->pages[page]->used += !stream->client;
    TPC_HOLDS(it->pages[page]->used > 0 && it->pages[page]->used <= LINK_PAGE_STREAMS);
    *stream = (link_stream){.client = client};
    return stream;
}

void link_end_stream(link *it, link_stream *stream) {
    link_page **page = &it->pages[(uint32_t)stream->client >> LINK_PAGE_BITS];
    TPC_HOLDS(stream->client && *page && (*page)->used > 0);
    TPC_HOLDS(stream == &(*page)->streams[(uint32_t)stream->client % LINK_PAGE_STREAMS]);
    *stream = (link_stream){0};
    if (--(*page)->used || it->connection->state == CONNECTION_CLOSING) return;
    TPC_HOLDS(it->owner->statistics.pages > 0);
    free(*page);
    *page = NULL;
    it->owner->statistics.pages--;
}
