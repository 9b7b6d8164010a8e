/*
 * A client's name from its certificate, which OpenSSL has verified: the whole subject by RFC 2253, or its first URI or DNS
 * name.
 *
 * The subject is written as Java writes it (X500Principal.getName()), since rules and ACLs are made of that: the last part
 * first; C, CN, DC, L, O, OU, ST, STREET and UID by name, all others as numbers with their value in hexadecimal digits. What
 * has a meaning in such a text is escaped inside a value, so that no value can be taken for another part.
 */
#include "tls.h"

#ifdef TPC_WITH_TLS

#include "context.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <openssl/x509v3.h>

typedef struct {
    char *at;
    size_t room;
    size_t bytes;
    bool is_full;
} text;

static void put(text *to, const char *bytes, size_t count) {
    if (count > to->room - to->bytes) {
        to->is_full = true;
        return;
    }
    memcpy(to->at + to->bytes, bytes, count);
    to->bytes += count;
}

static void put_text(text *to, const char *zero_ended) { put(to, zero_ended, strlen(zero_ended)); }

static void put_hex(text *to, const uint8_t *data, int count) {
    char two[3];
    for (int i = 0; i < count; i++) {
        snprintf(two, sizeof two, "%02x", data[i]);
        put(to, two, 2);
    }
}

static const char *keyword_of(const ASN1_OBJECT *type) {
    switch (OBJ_obj2nid(type)) {
    case NID_commonName:
        return "CN";
    case NID_countryName:
        return "C";
    case NID_domainComponent:
        return "DC";
    case NID_localityName:
        return "L";
    case NID_organizationName:
        return "O";
    case NID_organizationalUnitName:
        return "OU";
    case NID_stateOrProvinceName:
        return "ST";
    case NID_streetAddress:
        return "STREET";
    case NID_userId:
        return "UID";
    default:
        return NULL;
    }
}

static void put_escaped(text *to, const uint8_t *value, int count) {
    int first = 0, last = count;
    while (first < count && value[first] == ' ') first++;
    while (last > first && value[last - 1] == ' ') last--;
    for (int i = 0; i < count; i++) {
        if (value[i] == '\0') {
            put_text(to, "\\00");
            continue;
        }
        if (strchr(",=+<>#;\"\\", value[i]) != NULL || i < first || i >= last) put(to, "\\", 1);
        put(to, (const char *)value + i, 1);
    }
}

/* The value as it stands in the certificate. */
static bool put_encoded(text *to, const ASN1_STRING *value) {
    ASN1_TYPE whole = {.type = ASN1_STRING_type(value), .value.asn1_string = (ASN1_STRING *)(uintptr_t)value};
    uint8_t *encoded = NULL;
    int count = i2d_ASN1_TYPE(&whole, &encoded);
    if (count < 0) return false;
    put(to, "#", 1);
    put_hex(to, encoded, count);
    OPENSSL_free(encoded);
    return true;
}

static bool put_part(text *to, const X509_NAME_ENTRY *entry) {
    const ASN1_OBJECT *type = X509_NAME_ENTRY_get_object(entry);
    const ASN1_STRING *value = X509_NAME_ENTRY_get_data(entry);
    const char *keyword = keyword_of(type);
    char number[128];
    if (keyword == NULL && OBJ_obj2txt(number, sizeof number, type, 1) >= (int)sizeof number) return false;
    put_text(to, keyword != NULL ? keyword : number);
    put(to, "=", 1);
    if (keyword == NULL) return put_encoded(to, value);
    uint8_t *utf8 = NULL;
    int count = ASN1_STRING_to_UTF8(&utf8, value);
    if (count < 0) return false;
    put_escaped(to, utf8, count);
    OPENSSL_free(utf8);
    return true;
}

static bool put_subject(text *to, const X509_NAME *name) {
    int count = X509_NAME_entry_count(name);
    /* Parts of one set stay in their order, the sets come from the last to the first. */
    for (int end = count, begin; end > 0; end = begin) {
        int set = X509_NAME_ENTRY_set(X509_NAME_get_entry(name, end - 1));
        for (begin = end - 1; begin > 0 && X509_NAME_ENTRY_set(X509_NAME_get_entry(name, begin - 1)) == set;) begin--;
        for (int i = begin; i < end; i++) {
            if (end < count || i > begin) put(to, i > begin ? "+" : ",", 1);
            if (!put_part(to, X509_NAME_get_entry(name, i))) return false;
        }
    }
    return true;
}

/* The first of that kind. A name with a zero inside is none. */
static bool put_alternative(text *to, const X509 *certificate, int kind) {
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    bool is_found = false;
    for (int i = 0; !is_found && i < sk_GENERAL_NAME_num(names); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        if (name->type != kind) continue;
        const char *value = (const char *)ASN1_STRING_get0_data(name->d.ia5);
        size_t count = (size_t)ASN1_STRING_length(name->d.ia5);
        if (count == 0 || memchr(value, '\0', count) != NULL) break;
        put(to, value, count);
        is_found = true;
    }
    GENERAL_NAMES_free(names);
    return is_found;
}

int tls_name_of(const X509 *certificate, int where, char *into, size_t room) {
    text to = {.at = into, .room = room};
    bool is_found = where == TPC_TLS_NAME_SUBJECT
                        ? put_subject(&to, X509_get_subject_name(certificate))
                        : put_alternative(&to, certificate, where == TPC_TLS_NAME_URI ? GEN_URI : GEN_DNS);
    if (to.is_full) return -ENAMETOOLONG;
    return is_found && to.bytes > 0 ? (int)to.bytes : -ENOENT;
}

#endif
