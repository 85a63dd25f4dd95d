package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const reopenAfter = 50 * time.Millisecond

// streams keeps a stream of every vbucket going, whatever ends it, and what the streams told.
// It is the agent's StreamObserver.
type streams struct {
	agent *gocbcore.DCPAgent
	mutex sync.Mutex
	news  *sync.Cond
	logs  []*vbucketLog
}

func newStreams(agent *gocbcore.DCPAgent, vbuckets int) *streams {
	all := &streams{agent: agent}
	all.news = sync.NewCond(&all.mutex)
	for vbucket := 0; vbucket < vbuckets; vbucket++ {
		all.logs = append(all.logs, &vbucketLog{vbucket: uint16(vbucket), end: math.MaxUint64})
	}
	return all
}

// open asks for the stream of a vbucket from where it stands.
func (all *streams) open(vbucket uint16) {
	all.mutex.Lock()
	log := *all.logs[vbucket]
	all.mutex.Unlock()
	options := gocbcore.OpenStreamOptions{}
	if all.agent.HasCollectionsSupport() {
		options.FilterOptions = &gocbcore.OpenStreamFilterOptions{CollectionIDs: []uint32{0}}
		options.ManifestOptions = &gocbcore.OpenStreamManifestOptions{ManifestUID: 0}
	}
	_, err := all.agent.OpenStream(
		vbucket, memd.DcpStreamAddFlagActiveOnly, log.uuid,
		gocbcore.SeqNo(log.position), gocbcore.SeqNo(log.end),
		gocbcore.SeqNo(log.snapStart), gocbcore.SeqNo(log.snapEnd), all, options,
		func(entries []gocbcore.FailoverEntry, err error) { all.opened(vbucket, entries, err) },
	)
	if err != nil {
		all.opened(vbucket, nil, err)
	}
}

// opened runs on the connection's goroutine, before the stream's first event.
func (all *streams) opened(vbucket uint16, entries []gocbcore.FailoverEntry, err error) {
	var rollback gocbcore.DCPRollbackError
	switch {
	case err == nil:
		all.mutex.Lock()
		all.logs[vbucket].uuid = entries[0].VbUUID
		all.news.Broadcast()
		all.mutex.Unlock()
		told := [][]any{}
		for _, entry := range entries {
			told = append(told, []any{hexUUID(entry.VbUUID), uint64(entry.SeqNo)})
		}
		say(map[string]any{"event": "failover_log", "vbucket": vbucket, "entries": told})
	case errors.As(err, &rollback):
		say(map[string]any{
			"event": "rollback", "vbucket": vbucket, "seqno": uint64(rollback.SeqNo),
		})
		go all.rollBack(vbucket, rollback.SeqNo)
	default:
		fmt.Fprintf(os.Stderr, "vbucket %d: stream not opened: %v\n", vbucket, err)
		all.openLater(vbucket)
	}
}

// rollBack continues at seqno on the newest branch that held it.
func (all *streams) rollBack(vbucket uint16, seqno gocbcore.SeqNo) {
	_, err := all.agent.GetFailoverLog(vbucket, func(log []gocbcore.FailoverEntry, err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "vbucket %d: no failover log: %v\n", vbucket, err)
			all.openLater(vbucket)
			return
		}
		var uuid gocbcore.VbUUID
		for _, entry := range log { // newest first
			if entry.SeqNo <= seqno {
				uuid = entry.VbUUID
				break
			}
		}
		all.mutex.Lock()
		all.logs[vbucket].rollBackTo(uint64(seqno), uuid)
		all.mutex.Unlock()
		go all.open(vbucket)
	})
	if err != nil {
		all.openLater(vbucket)
	}
}

func (all *streams) openLater(vbucket uint16) {
	time.AfterFunc(reopenAfter, func() { all.open(vbucket) })
}

// update changes what is known of a vbucket and wakes who waits for it.
func (all *streams) update(vbucket uint16, change func(*vbucketLog)) {
	all.mutex.Lock()
	defer all.mutex.Unlock()
	change(all.logs[vbucket])
	all.news.Broadcast()
}

// waitFor returns when done holds of the logs.
func (all *streams) waitFor(done func([]*vbucketLog) bool) {
	all.mutex.Lock()
	defer all.mutex.Unlock()
	for !done(all.logs) {
		all.news.Wait()
	}
}

func (all *streams) report() {
	all.mutex.Lock()
	defer all.mutex.Unlock()
	for _, log := range all.logs {
		say(log.report())
	}
	say(map[string]any{"event": "reported"})
}

func (all *streams) SnapshotMarker(marker gocbcore.DcpSnapshotMarker) {
	all.update(marker.VbID, func(log *vbucketLog) {
		log.snapStart, log.snapEnd = marker.StartSeqNo, marker.EndSeqNo
	})
}

func (all *streams) Mutation(event gocbcore.DcpMutation) {
	all.update(event.VbID, func(log *vbucketLog) { log.mutation(event) })
}

func (all *streams) Deletion(event gocbcore.DcpDeletion) {
	all.update(event.VbID, func(log *vbucketLog) {
		log.append(event.SeqNo, event.Key, nil)
		log.deletions++
	})
}

func (all *streams) Expiration(event gocbcore.DcpExpiration) {
	all.update(event.VbID, func(log *vbucketLog) {
		log.append(event.SeqNo, event.Key, nil)
		log.expirations++
	})
}

func (all *streams) SeqNoAdvanced(event gocbcore.DcpSeqNoAdvanced) {
	all.update(event.VbID, func(log *vbucketLog) {
		log.position, log.snapStart, log.snapEnd = event.SeqNo, event.SeqNo, event.SeqNo
	})
}

// End is called for a STREAM_END and for a connection that was lost.
func (all *streams) End(end gocbcore.DcpStreamEnd, err error) {
	if err == nil {
		all.update(end.VbID, func(log *vbucketLog) { log.ended = true })
		return
	}
	say(map[string]any{"event": "stream_end", "vbucket": end.VbID, "reason": err.Error()})
	if !errors.Is(err, gocbcore.ErrShutdown) {
		all.openLater(end.VbID)
	}
}

func (all *streams) CreateCollection(event gocbcore.DcpCollectionCreation) { unexpected(event) }
func (all *streams) DeleteCollection(event gocbcore.DcpCollectionDeletion) { unexpected(event) }
func (all *streams) FlushCollection(event gocbcore.DcpCollectionFlush)     { unexpected(event) }
func (all *streams) CreateScope(event gocbcore.DcpScopeCreation)           { unexpected(event) }
func (all *streams) DeleteScope(event gocbcore.DcpScopeDeletion)           { unexpected(event) }
func (all *streams) OSOSnapshot(event gocbcore.DcpOSOSnapshot)             { unexpected(event) }
func (all *streams) ModifyCollection(event gocbcore.DcpCollectionModification) {
	unexpected(event)
}

// unexpected is for events that nothing in these tests causes.
func unexpected(event any) {
	fmt.Fprintf(os.Stderr, "found an event that was not asked for: %#v\n", event)
	os.Exit(1)
}

var saying sync.Mutex

// say prints one JSON line.
func say(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(string(text))
}

func hexUUID(uuid gocbcore.VbUUID) string {
	return fmt.Sprintf("%016x", uint64(uuid))
}
