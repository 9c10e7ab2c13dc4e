package peers;

/** The filter cannot be used, or (lost) a call may have run and its answer did not arrive. */
final class FilterError extends RuntimeException {
    private static final long serialVersionUID = 1;

    final boolean lost;

    FilterError(String text) {
        this(text, false);
    }

    FilterError(String text, boolean lost) {
        super(text);
        this.lost = lost;
    }
}
