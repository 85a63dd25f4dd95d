"""The names that case files use for the facts of a frame.

A name means the first of its canonical names that the frame has. ``_ALIASES`` is written the other
way round, canonical name first, because that is how one reads it.
"""

from typing import Final

REMARKS: Final = frozenset(
    ("note", "notes", "comment", "comments", "remark", "remarks", "description", "why", "source")
)
"""Names whose text is for people; it is not compared."""

_ALIASES: Final = {
    # header
    "magic": "magic_byte",
    "opcode": "op command cmd",
    "total_len": "total_length frame_len frame_length frame_bytes total_bytes total_size length",
    "body_len": "body_length total_body total_body_len total_body_length bodylen body_bytes",
    "extras_len": "extras_length ext_len extlen extra_len extras_bytes extra_length",
    "key_len": "key_length keylen key_bytes",
    "value_len": "value_length vallen value_bytes",
    "framing_extras_len": "framing_len framing_extras_length framing_extra_len flex_len "
    "flex_extras_len frame_extras_len framing_extras_bytes framing_length",
    "vbucket": "vb vbid vbucket_id vb_id",
    "status": "status_code",
    "datatype": "data_type dtype",
    "opaque": "stream_opaque_header",
    "status_name": "status_text error_name",
    # framing extras
    "stream_id": "sid dcp_stream_id streamid",
    "server_duration_us": "duration_us server_duration duration server_recv_send_duration "
    "duration_micros server_duration_micros server_duration_usec duration_usec us micros",
    "server_duration_encoded": "duration_encoded encoded encoded_duration duration_enc "
    "raw_duration server_duration_enc server_duration_raw duration_raw enc",
    "framing_extras": "framing frame_info frame_infos flex_extras frame_extras framing_hex",
    "frame_info_id": "info_id framing_id",
    "frame_info_len": "info_len",
    "read_units": "ru",
    "write_units": "wu",
    # parts
    "key": "key_text doc_key document_key logical_key",
    "value": "val value_text payload body_text raw_value content text",
    "value_decompressed": "decompressed value_inflated inflated value_uncompressed uncompressed "
    "decompressed_value inflated_value",
    "body": "doc document document_body doc_body body_value",
    "xattr_section_len": "xattr_len xattr_total xattrs_len xattr_section_length xattr_total_len",
    "pair_len": "xattr_pair_len pair_lens pair_length",
    "xattrs": "xattr",
    "xattr_key": "xattr_name",
    "xattr_value": "",
    "collection": "collection_id cid coll collectionid coll_id",
    "leb128": "collection_leb128 leb128_prefix prefix key_prefix collection_prefix",
    # connection set-up
    "agent": "user_agent client client_name",
    "features": "feature hello_features feature_codes",
    "mechanism": "mech sasl_mechanism sasl_mech",
    "payload": "challenge sasl_payload data client_first server_first client_final server_final",
    "mechanisms": "mechs mech_list",
    "user": "username n authcid login",
    "password": "pass passwd pw",
    "nonce": "r combined_nonce full_nonce server_nonce client_nonce cnonce snonce",
    "salt": "s salt_b64",
    "iterations": "i iteration_count iter iters",
    "proof": "p client_proof",
    "server_signature": "v signature verifier",
    "channel_binding": "c gs2 gs2_header",
    "bucket": "bucket_name",
    "version": "version_byte max_version error_map_version marker_version",
    "group": "stat_group stat",
    "path": "collection_path scope_path",
    "config": "cluster_config clustermap map bucket_config",
    "epoch": "rev_epoch revepoch config_epoch known_epoch",
    "rev": "revision config_rev known_rev map_rev",
    # seqnos
    "by_seqno": "seqno byseqno bySeqno",
    "rev_seqno": "rev revseqno revision_seqno revision revno revSeqno",
    "rollback_seqno": "seqno rollback rollback_to rollbackseqno",
    "entries": "failover_log log failover failover_entries failoverlog failover_table history "
    "n_entries entry_count",
    "newest_uuid": "current_uuid latest_uuid",
    "newest_seqno": "latest_seqno",
    "seqnos": "vbuckets vb_seqnos vbs vbucket_seqnos high_seqnos entries list pairs all_seqnos "
    "vb_list",
    "state": "vb_state vbucket_state vbstate",
    "vb_uuid": "uuid vbuuid vbucket_uuid vb_uid new_uuid current_uuid vbucketuuid",
    "persisted": "persisted_seqno last_persisted_seqno last_persisted",
    "current": "current_seqno high_seqno high",
    "old_uuid": "old_vb_uuid old_vbuuid failed_uuid asked_uuid",
    "last_seqno_old": "last_seqno old_last_seqno old_seqno last_received_seqno old_uuid_seqno",
    # streams
    "flags": "flag user_flags item_flags open_flags stream_flags snapshot_type",
    "name": "connection_name conn_name control key connection dcp_name control_name stream_name",
    "control_value": "value setting",
    "reserved": "seqno unused zero",
    "consumer_name": "",
    "stream_opaque": "new_opaque",
    "snap_start": "snap_start_seqno snapshot_start snapshot_start_seqno snapstart start_snapshot",
    "snap_end": "snap_end_seqno snapshot_end snapshot_end_seqno snapend end_snapshot",
    "start": "start_seqno startseqno snap_start snapshot_start start_seq",
    "end": "end_seqno endseqno snap_end snapshot_end end_seq",
    "filter": "json stream_filter request_json value_json json_value",
    "bytes": "ack_bytes acked_bytes buffer_bytes ack n_bytes acked buffer_ack bytes_acked",
    "reason": "end_reason status_reason",
    "max_visible_seqno": "mvs max_visible",
    "high_completed_seqno": "hcs high_completed",
    "high_prepared_seqno": "hps high_prepared",
    "purge_seqno": "purge",
    "timestamp": "ts",
    # documents
    "expiry": "expiration exptime exp expiry_time",
    "lock_time": "locktime lock",
    "nmeta": "ext_meta_len meta_len nmeta_len emd",
    "cache_hint": "nru hint cachehint mfu",
    "delete_time": "deletion_time deletetime del_time",
    "unused": "reserved unused_byte collection_len",
    "deleted": "is_deleted delete",
    "level": "durability durability_level",
    "prepared_seqno": "prepared prepare prepare_seqno seqno",
    "commit_seqno": "commit committed committed_seqno by_seqno",
    "abort_seqno": "abort aborted aborted_seqno by_seqno",
    "seqno": "by_seqno advanced_seqno new_seqno",
    # system events
    "event": "event_id event_code system_event event_type sysevent",
    "manifest_uid": "manifest uid manifest_id manifestuid",
    "scope": "scope_id",
    "max_ttl": "ttl maxttl max_ttl_seconds",
    "event_name": "name collection_name scope_name key",
    # errors and JSON
    "error": "error_json error_body err",
    "context": "error_context err_context message reason",
    "ref": "error_ref reference",
    # cache transfer
    "records": "items docs documents cache_items entries record item n_records batch",
}


def _by_alias() -> dict[str, tuple[str, ...]]:
    names: dict[str, list[str]] = {}
    for canonical, aliases in _ALIASES.items():
        for alias in aliases.split():
            names.setdefault(alias, []).append(canonical)
    return {alias: tuple(canonical) for alias, canonical in names.items()}


CANONICAL: Final = _by_alias()
"""For each alias, the canonical names that it may mean."""

KNOWN: Final = frozenset(CANONICAL) | frozenset(_ALIASES)
"""All names that some frame has; any other is not understood."""
