package dcplake.interop;

import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.FailoverLog;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.Rollback;
import com.couchbase.client.dcp.highlevel.SeqnoAdvanced;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.couchbase.client.dcp.message.StreamEndReason;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/** Keeps what the client is told, and prints what is not data as JSON lines at once. */
final class Listener implements DatabaseChangeListener {
  private final List<VbucketLog> logs = new ArrayList<>();
  private final Set<Integer> ended = new HashSet<>();
  private Throwable failure;

  /** To be called before the first event. */
  synchronized void prepare(int vbuckets) {
    for (int vbucket = 0; vbucket < vbuckets; vbucket++) {
      logs.add(new VbucketLog(vbucket));
    }
  }

  @Override
  public synchronized void onMutation(Mutation change) {
    logs.get(change.getVbucket()).mutation(
        change.getOffset().getSeqno(), change.getKey(), change.getCas(), change.getRevision(),
        change.getFlagsAsInt(), change.getExpiry(), change.getContent());
    notifyAll();
  }

  @Override
  public synchronized void onDeletion(Deletion change) {
    logs.get(change.getVbucket()).deletion(change.getOffset().getSeqno(), change.getKey());
    notifyAll();
  }

  @Override
  public synchronized void onSeqnoAdvanced(SeqnoAdvanced event) {
    logs.get(event.getVbucket()).advanced(event.getOffset().getSeqno());
    notifyAll();
  }

  @Override
  public synchronized void onFailoverLog(FailoverLog log) {
    logs.get(log.getVbucket()).branch(log.getEntries().get(0).getUuid());
    String entries = log.getEntries().stream()
        .map(entry -> String.format(
            "[\"%016x\",%s]", entry.getUuid(), Long.toUnsignedString(entry.getSeqno())))
        .collect(Collectors.joining(","));
    print("{\"event\":\"failover_log\",\"vbucket\":%d,\"entries\":[%s]}", log.getVbucket(), entries);
    notifyAll();
  }

  @Override
  public synchronized void onRollback(Rollback rollback) {
    logs.get(rollback.getVbucket()).rollBackTo(rollback.getSeqno());
    print("{\"event\":\"rollback\",\"vbucket\":%d,\"seqno\":%s}",
        rollback.getVbucket(), Long.toUnsignedString(rollback.getSeqno()));
    rollback.resume();
  }

  @Override
  public synchronized void onStreamEnd(StreamEnd end) {
    print("{\"event\":\"stream_end\",\"vbucket\":%d,\"reason\":\"%s\"}",
        end.getVbucket(), end.getReason());
    if (end.getReason() == StreamEndReason.OK) {
      ended.add(end.getVbucket());
      notifyAll();
    }
  }

  @Override
  public synchronized void onFailure(StreamFailure streamFailure) {
    failure = streamFailure.getCause();
    notifyAll();
  }

  /** Waits until every stream came to its end, then prints a line per vbucket. */
  synchronized void awaitEnd() throws InterruptedException {
    while (ended.size() < logs.size()) {
      waitForNews();
    }
    report();
  }

  /** Waits for all of {@code goals}, each {@code vbucket:uuid:seqno}; then prints the vbuckets. */
  synchronized void await(List<String> goals) throws InterruptedException {
    for (String goal : goals) {
      String[] parts = goal.split(":");
      VbucketLog log = logs.get(Integer.parseInt(parts[0]));
      long uuid = Long.parseUnsignedLong(parts[1], 16);
      long seqno = Long.parseUnsignedLong(parts[2]);
      while (!log.reached(uuid, seqno)) {
        waitForNews();
      }
    }
    report();
  }

  synchronized void print(String format, Object... values) {
    System.out.println(String.format(format, values));
  }

  private void waitForNews() throws InterruptedException {
    if (failure != null) {
      throw new IllegalStateException("the client gave up", failure);
    }
    wait();
  }

  private void report() {
    logs.forEach(log -> System.out.println(log.report()));
    print("{\"event\":\"reported\"}");
  }
}
