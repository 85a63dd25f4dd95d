package dcplake.interop;

import com.couchbase.client.dcp.Client;
import com.couchbase.client.dcp.StreamFrom;
import com.couchbase.client.dcp.StreamTo;
import com.couchbase.client.dcp.highlevel.FlowControlMode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Streams a bucket with the official client, from the beginning, and says in JSON lines what came.
 *
 * <p>To now: ends by itself with a line per vbucket. To infinity: takes orders from standard input,
 * {@code await vbucket:uuid:seqno ...}, and ends with it.
 */
public final class Driver {
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private Driver() {}

  public static void main(String[] words) throws Exception {
    Options options = Options.of(words);
    Listener listener = new Listener();
    try (Client client = client(options)) {
      client.listener(listener, FlowControlMode.AUTOMATIC);
      client.connect().block(PATIENCE);
      listener.prepare(client.numPartitions());
      StreamTo to = options.toInfinity() ? StreamTo.INFINITY : StreamTo.NOW;
      client.initializeState(StreamFrom.BEGINNING, to).block(PATIENCE);
      client.startStreaming().block(PATIENCE);
      listener.print("{\"event\":\"streaming\",\"vbuckets\":%d}", client.numPartitions());
      if (options.toInfinity()) {
        takeOrders(listener);
      } else {
        listener.awaitEnd();
      }
    }
  }

  static Client client(Options options) {
    Client.Builder builder = Client.builder()
        .seedNodes(options.seeds())
        .bucket(options.bucket())
        .credentials(options.user(), options.password())
        .collectionsAware(options.collections())
        .flowControl(options.windowBytes());
    if (options.mitigateMillis() > 0) {
      builder.mitigateRollbacks(options.mitigateMillis(), TimeUnit.MILLISECONDS);
    }
    if (options.tlsCa() != null) {
      builder.securityConfig(tls -> tls.enableTls(true).trustCertificate(options.tlsCa()));
    }
    return builder.build();
  }

  private static void takeOrders(Listener listener) throws IOException, InterruptedException {
    BufferedReader orders =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = orders.readLine(); line != null; line = orders.readLine()) {
      List<String> parts = Arrays.asList(line.split(" "));
      if (!parts.get(0).equals("await")) {
        throw new IllegalArgumentException("found the order '" + line + "', expected await …");
      }
      listener.await(parts.subList(1, parts.size()));
    }
  }
}
