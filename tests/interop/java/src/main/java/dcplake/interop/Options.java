package dcplake.interop;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The command line: {@code --name value} pairs. The password comes from the environment. */
record Options(
    List<String> seeds,
    String bucket,
    String user,
    String password,
    Path tlsCa,
    boolean toInfinity,
    int windowBytes,
    long mitigateMillis,
    boolean collections) {

  static Options of(String[] words) {
    Map<String, String> given = new HashMap<>();
    for (int i = 0; i + 1 < words.length; i += 2) {
      given.put(words[i], words[i + 1]);
    }
    String ca = given.get("--tls-ca");
    return new Options(
        Arrays.asList(given.get("--seeds").split(",")),
        given.getOrDefault("--bucket", "default"),
        given.get("--user"),
        System.getenv("DRIVER_PASSWORD"),
        ca == null ? null : Path.of(ca),
        given.getOrDefault("--to", "now").equals("infinity"),
        Integer.parseInt(given.getOrDefault("--window-bytes", "65536")),
        Long.parseLong(given.getOrDefault("--mitigate-millis", "0")),
        Boolean.parseBoolean(given.getOrDefault("--collections", "true")));
  }
}
