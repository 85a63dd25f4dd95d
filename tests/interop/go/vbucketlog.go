package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sort"

	"github.com/couchbase/gocbcore/v10"
)

// change is one event; document is what the digest takes of a live document, nil of a deleted one.
type change struct {
	seqno    uint64
	key      string
	document []byte
}

// vbucketLog is what a client was told of one vbucket, in order. All versions are kept, so that a
// rollback leaves what was there at its seqno. Not for several goroutines at once.
type vbucketLog struct {
	vbucket     uint16
	changes     []change
	uuid        gocbcore.VbUUID
	position    uint64
	snapStart   uint64
	snapEnd     uint64
	end         uint64
	ended       bool
	mutations   int
	deletions   int
	expirations int
}

func (log *vbucketLog) mutation(event gocbcore.DcpMutation) {
	document := binary.BigEndian.AppendUint32(nil, uint32(len(event.Key)))
	document = append(document, event.Key...)
	document = binary.BigEndian.AppendUint64(document, event.Cas)
	document = binary.BigEndian.AppendUint64(document, event.RevNo)
	document = binary.BigEndian.AppendUint32(document, event.Flags)
	document = binary.BigEndian.AppendUint32(document, event.Expiry)
	document = binary.BigEndian.AppendUint32(document, uint32(len(event.Value)))
	document = append(document, event.Value...)
	log.append(event.SeqNo, event.Key, document)
	log.mutations++
}

func (log *vbucketLog) append(seqno uint64, key []byte, document []byte) {
	log.changes = append(log.changes, change{seqno, string(key), document})
	log.position = seqno
}

// rollBackTo forgets what lies above seqno and continues there on the branch uuid.
func (log *vbucketLog) rollBackTo(seqno uint64, uuid gocbcore.VbUUID) {
	kept := log.changes[:0]
	for _, each := range log.changes {
		if each.seqno <= seqno {
			kept = append(kept, each)
		}
	}
	log.changes = kept
	log.position, log.snapStart, log.snapEnd, log.uuid = seqno, seqno, seqno, uuid
}

// report counts and digests the live documents in the order of their keys.
func (log *vbucketLog) report() map[string]any {
	live := map[string][]byte{}
	for _, each := range log.changes {
		if each.document == nil {
			delete(live, each.key)
		} else {
			live[each.key] = each.document
		}
	}
	keys := make([]string, 0, len(live))
	for key := range live {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	digest := sha256.New()
	for _, key := range keys {
		digest.Write(live[key])
	}
	return map[string]any{
		"event":       "vbucket",
		"vbucket":     log.vbucket,
		"uuid":        hexUUID(log.uuid),
		"seqno":       log.position,
		"mutations":   log.mutations,
		"deletions":   log.deletions,
		"expirations": log.expirations,
		"documents":   len(live),
		"digest":      hex.EncodeToString(digest.Sum(nil)),
	}
}
