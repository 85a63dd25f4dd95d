package dcplake.interop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * What a client was told of one vbucket, in order. All versions are kept, so that a rollback leaves
 * what was there at its seqno. Not thread-safe.
 */
final class VbucketLog {
  /** {@code document} is what the digest takes of a live document, null of a deleted one. */
  private record Change(long seqno, byte[] key, byte[] document) {}

  private final int vbucket;
  private final List<Change> changes = new ArrayList<>();
  private long uuid;
  private long position;
  private int mutations;
  private int deletions;

  VbucketLog(int vbucket) {
    this.vbucket = vbucket;
  }

  void branch(long newestUuid) {
    uuid = newestUuid;
  }

  void mutation(long seqno, String key, long cas, long revision, int flags, int expiry, byte[] content) {
    byte[] keyBytes = key.getBytes(StandardCharsets.UTF_8);
    ByteBuffer document = ByteBuffer.allocate(4 + keyBytes.length + 8 + 8 + 4 + 4 + 4 + content.length);
    document.putInt(keyBytes.length).put(keyBytes);
    document.putLong(cas).putLong(revision).putInt(flags).putInt(expiry);
    document.putInt(content.length).put(content);
    changes.add(new Change(seqno, keyBytes, document.array()));
    position = seqno;
    mutations++;
  }

  void deletion(long seqno, String key) {
    changes.add(new Change(seqno, key.getBytes(StandardCharsets.UTF_8), null));
    position = seqno;
    deletions++;
  }

  void advanced(long seqno) {
    position = seqno;
  }

  void rollBackTo(long seqno) {
    changes.removeIf(change -> Long.compareUnsigned(change.seqno, seqno) > 0);
    position = seqno;
  }

  /** Whether all up to {@code seqno} of the branch {@code wantedUuid} was told. */
  boolean reached(long wantedUuid, long seqno) {
    return uuid == wantedUuid && Long.compareUnsigned(position, seqno) >= 0;
  }

  /** One JSON line; the digest is over the live documents in the order of their keys. */
  String report() {
    Map<byte[], byte[]> live = new TreeMap<>(Arrays::compareUnsigned);
    for (Change change : changes) {
      if (change.document == null) {
        live.remove(change.key);
      } else {
        live.put(change.key, change.document);
      }
    }
    MessageDigest digest = sha256();
    live.values().forEach(digest::update);
    return String.format(
        "{\"event\":\"vbucket\",\"vbucket\":%d,\"uuid\":\"%016x\",\"seqno\":%s,"
            + "\"mutations\":%d,\"deletions\":%d,\"expirations\":0,\"documents\":%d,\"digest\":\"%s\"}",
        vbucket, uuid, Long.toUnsignedString(position), mutations, deletions, live.size(),
        HexFormat.of().formatHex(digest.digest()));
  }

  private static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException("every Java has SHA-256", error);
    }
  }
}
