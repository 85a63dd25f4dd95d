package dcplake;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.Set;
import java.util.UUID;
import java.util.WeakHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;

/**
 * Commits to Delta tables on S3: the store itself refuses the second commit of a version, since each
 * is a conditional write ({@code If-None-Match: *}). Any number of drivers may commit at once.
 *
 * <p>Before the first commit of a process it tries whether the store honours that condition.
 */
public final class S3LogStore extends HadoopFileSystemLogStore {

    private static final byte[] PROBE = "dcplake tries conditional writes\n".getBytes(StandardCharsets.UTF_8);

    private static final int CONFLICT = 409;
    private static final int NOT_IMPLEMENTED = 501;

    private static final int ATTEMPTS = 6;
    private static final long FIRST_PAUSE_MILLIS = 100;

    /** Connections whose store honours the condition. */
    private static final Set<FileSystem> SAFE =
            Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>()));

    /** Delta makes it with the configuration of its session. */
    public S3LogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        // All of it before the upload begins: one that fails half-way is never completed.
        ByteArrayOutputStream lines = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        byte[] content = lines.toByteArray();
        FileSystem store = path.getFileSystem(configuration);
        if (overwrite) {
            upload(store.create(path, true), content);
            return;
        }
        requireConditionalWrites(path.getParent(), configuration);
        try {
            create(store, path, content, false);
        } catch (IOException failure) {
            requireOwn(store, path, content, failure);
        }
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return false;
    }

    /**
     * Writes a file where there is none; in parts if it must be, as S3A writes what is large.
     *
     * <p>S3 answers 409 while another conditional request for the same key is on its way, and asks to try again.
     */
    private static void create(FileSystem store, Path path, byte[] content, boolean inParts) throws IOException {
        long pauseMillis = FIRST_PAUSE_MILLIS;
        for (int attempt = 1; true; attempt++) {
            try {
                createOnce(store, path, content, inParts);
                return;
            } catch (AWSServiceIOException failure) {
                if (failure.statusCode() != CONFLICT || attempt == ATTEMPTS) {
                    throw failure;
                }
            }
            pause(pauseMillis);
            pauseMillis *= 2;
        }
    }

    private static void pause(long millis) throws InterruptedIOException {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException interruption) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("interrupted before another attempt to write");
        }
    }

    private static void createOnce(FileSystem store, Path path, byte[] content, boolean inParts)
            throws IOException {
        FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path);
        builder.recursive();
        builder.overwrite(true); // else S3A looks first
        builder.must("fs.option.create.conditional.overwrite", true);
        builder.opt("fs.s3a.create.performance", true); // no look whether it is a folder
        if (inParts) {
            builder.must("fs.s3a.create.multipart", true);
        }
        upload(builder.build(), content);
    }

    private static void upload(FSDataOutputStream stream, byte[] content) throws IOException {
        try {
            stream.write(content);
        } catch (IOException | RuntimeException failure) {
            stream.abort(); // to close it would complete the upload
            throw failure;
        }
        stream.close();
    }

    /**
     * Decides by what is there after a write failed. The store may have refused our own content: S3A
     * writes again where it heard no answer. Each commit of Delta has an identifier of its own.
     */
    private static void requireOwn(FileSystem store, Path path, byte[] content, IOException failure)
            throws IOException {
        byte[] found;
        try (FSDataInputStream stream = store.open(path)) {
            found = stream.readAllBytes();
        } catch (FileNotFoundException nothing) {
            throw failure;
        } catch (IOException unknown) {
            failure.addSuppressed(unknown);
            throw failure;
        }
        if (!Arrays.equals(found, content)) {
            FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
            taken.initCause(failure);
            throw taken;
        }
    }

    /**
     * Tries whether the store of a folder refuses to overwrite a file when it is asked to refuse.
     *
     * @throws UnsafeStoreException it overwrites, or does not know the condition
     */
    public static void requireConditionalWrites(Path folder, Configuration configuration) throws IOException {
        FileSystem store = folder.getFileSystem(configuration);
        if (SAFE.contains(store)) {
            return;
        }
        Path probe = new Path(folder, "." + UUID.randomUUID() + ".dcplake-probe");
        try {
            tryToOverwrite(store, probe);
        } catch (IOException | RuntimeException failure) {
            try {
                store.delete(probe, false);
            } catch (IOException | RuntimeException second) {
                failure.addSuppressed(second);
            }
            throw failure;
        }
        store.delete(probe, false);
        SAFE.add(store);
    }

    private static void tryToOverwrite(FileSystem store, Path probe) throws IOException {
        try {
            create(store, probe, PROBE, false);
            if (!isRefused(store, probe, false)) {
                throw new UnsafeStoreException(store, "overwrote a file although If-None-Match forbade it");
            }
            if (!isRefused(store, probe, true)) {
                throw new UnsafeStoreException(
                        store, "overwrote a file by an upload in parts although If-None-Match forbade it");
            }
        } catch (AWSServiceIOException failure) {
            if (failure.statusCode() == NOT_IMPLEMENTED) {
                throw new UnsafeStoreException(store, "does not know If-None-Match");
            }
            throw failure;
        }
    }

    private static boolean isRefused(FileSystem store, Path probe, boolean inParts) throws IOException {
        try {
            create(store, probe, PROBE, inParts);
            return false;
        } catch (RemoteFileChangedException refusal) { // status 412
            return true;
        }
    }

    /** The store may overwrite what another driver wrote. */
    public static final class UnsafeStoreException extends IOException {
        private static final long serialVersionUID = 1L;

        UnsafeStoreException(FileSystem store, String found) {
            super(store.getUri() + " at " + store.getConf().get("fs.s3a.endpoint") + ": the store " + found);
        }
    }
}
