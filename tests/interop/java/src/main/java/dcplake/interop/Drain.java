package dcplake.interop;

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.highlevel.DatabaseChangeListener;
import com.couchbase.client.dcp.highlevel.Deletion;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import com.couchbase.client.dcp.highlevel.Mutation;
import com.couchbase.client.dcp.highlevel.StreamEnd;
import com.couchbase.client.dcp.highlevel.StreamFailure;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;

/**
 * Measures: for each line of standard input, streams a bucket from its beginning to now with the
 * official client, and says in a JSON line how much came and what it cost this process.
 *
 * <p>One process drains again and again, so that the first ones can be left out as warming up.
 */
public final class Drain implements DatabaseChangeListener {
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private final LongAdder documents = new LongAdder();
  private final LongAdder contentBytes = new LongAdder();
  private final Semaphore ended = new Semaphore(0);
  private volatile Throwable failure;

  private Drain() {}

  public static void main(String[] words) throws IOException, InterruptedException {
    Options options = Options.of(words);
    BufferedReader orders =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    while (orders.readLine() != null) {
      drain(options);
    }
  }

  private static void drain(Options options) throws InterruptedException {
    try (Client client = Driver.client(options)) {
      Drain drain = new Drain();
      client.listener(drain, FlowControlMode.AUTOMATIC);
      client.connect().block(PATIENCE);
      client.initializeState(StreamFrom.BEGINNING, StreamTo.NOW).block(PATIENCE);
      long began = System.nanoTime();
      long cpu = cpuNanos();
      client.startStreaming().block(PATIENCE);
      drain.ended.acquire(client.numPartitions());
      if (drain.failure != null) {
        throw new IllegalStateException("the client gave up", drain.failure);
      }
      System.out.printf(
          "{\"documents\":%d,\"content_bytes\":%d,\"nanos\":%d,\"cpu_nanos\":%d}%n",
          drain.documents.sum(), drain.contentBytes.sum(), System.nanoTime() - began,
          cpuNanos() - cpu);
    }
  }

  private static long cpuNanos() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getProcessCpuTime();
  }

  @Override
  public void onMutation(Mutation change) {
    documents.increment();
    contentBytes.add(change.getKey().length() + change.getContent().length);
  }

  @Override
  public void onDeletion(Deletion change) {
    documents.increment();
  }

  @Override
  public void onStreamEnd(StreamEnd end) {
    ended.release();
  }

  @Override
  public void onFailure(StreamFailure streamFailure) {
    failure = streamFailure.getCause();
    ended.release(Integer.MAX_VALUE / 2);
  }
}
