package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

// writeDurably sets two documents with each level and deletes one of them; after a set that did not
// end well the level is left alone. A line says how each level ended.
func writeDurably(given options) error {
	agent, err := documentAgent(given)
	if err != nil {
		return err
	}
	defer func() { _ = agent.Close() }()
	told := map[string]any{"event": "written"}
	for name, level := range map[string]memd.DurabilityLevel{
		"majority":                   memd.DurabilityLevelMajority,
		"majorityAndPersistOnMaster": memd.DurabilityLevelMajorityAndPersistOnMaster,
		"persistToMajority":          memd.DurabilityLevelPersistToMajority,
	} {
		ended, err := ending(writeWith(agent, name, level))
		if err != nil {
			return err
		}
		told[name] = ended
	}
	say(told)
	return nil
}

func writeWith(agent *gocbcore.Agent, name string, level memd.DurabilityLevel) error {
	const timeout = 2 * time.Second
	deadline := time.Now().Add(patience)
	for _, key := range []string{name, name + "-deleted"} {
		err := wait(func(done func(error)) (gocbcore.PendingOp, error) {
			return agent.Set(gocbcore.SetOptions{
				Key: []byte(key), Value: []byte("{}"), Deadline: deadline,
				DurabilityLevel: level, DurabilityLevelTimeout: timeout,
			}, func(_ *gocbcore.StoreResult, err error) { done(err) })
		})
		if err != nil {
			return err
		}
	}
	return wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.Delete(gocbcore.DeleteOptions{
			Key: []byte(name + "-deleted"), Deadline: deadline,
			DurabilityLevel: level, DurabilityLevelTimeout: timeout,
		}, func(_ *gocbcore.DeleteResult, err error) { done(err) })
	})
}

// ending names the ends that a durable write may have.
func ending(err error) (string, error) {
	switch {
	case err == nil:
		return "well", nil
	case errors.Is(err, gocbcore.ErrDurabilityAmbiguous):
		return "ambiguous", nil
	case errors.Is(err, gocbcore.ErrDurabilityImpossible):
		return "impossible", nil
	default:
		return "", fmt.Errorf("durable write: %w", err)
	}
}
